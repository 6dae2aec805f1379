"""What every layer shares: dtypes and policies, dims, types, scalars, signatures, errors, flags."""
