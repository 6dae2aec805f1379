"""Looking into programs: what they become, and where their time and memory go."""

from tessera.core.modules import refuse_calls

refuse_calls(
    __name__, "inspect: ts.inspect is a package; write f.inspect(*args) for a jitted function"
)
