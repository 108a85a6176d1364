"""A pipeline's parameter, as forms, commands and the validation see it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameter:
    """Values are text. `default` None: the parameter is required."""

    name: str
    default: str | None
    help: str
    choices: tuple[str, ...] = ()  # empty: any text that the pipeline can read
    is_secret: bool = False  # its text names the place that keeps the secret
