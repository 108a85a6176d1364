"""What a command says when it refuses."""

from pipelines.domain.errors import BrokenCode, Rejected


def explained(refusal: Rejected) -> str:
    """The sentence; below it, where in the author's code it comes from."""
    if isinstance(refusal, BrokenCode):
        return f"{refusal}\n\n{refusal.traceback}"
    return str(refusal)
