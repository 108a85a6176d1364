"""All mutants, keyed by the claim of their row in ARCHITECTURE.md."""

from tests.mutants.checkpoints import CHECKPOINTS
from tests.mutants.control_plane import CONTROL_PLANE
from tests.mutants.mutant import Mutant
from tests.mutants.output import OUTPUT
from tests.mutants.recovery import RECOVERY
from tests.mutants.structured import STRUCTURED

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    **CHECKPOINTS,
    **OUTPUT,
    **RECOVERY,
    **CONTROL_PLANE,
    **STRUCTURED,
}
