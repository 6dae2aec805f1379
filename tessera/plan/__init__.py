"""Planning: machines, models as sizes, costs, the search over layouts and a simulator of the pipeline."""
