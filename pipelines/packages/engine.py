"""Packs the engine that runs here, for the machines of a cluster.

They need the libraries that the engine imports, and not the engine: it comes from the driver, so
the slots of a run have the driver's version, whatever is installed where they run. The archive
declares the pipelines that ship with the engine.
"""

import zipfile
from pathlib import Path

from pipelines import __version__
from pipelines.packages.folder import add_file, files_in
from pipelines.packages.wheel import GROUP

ENGINE = Path(__file__).parents[1]
FILE = "ftdash-engine.zip"
METADATA = f"ftdash-{__version__}.dist-info"
"""Python finds entry points by it. It hides those of an ftdash that is installed there."""
HEAD = f"Metadata-Version: 2.1\nName: ftdash\nVersion: {__version__}\n"


def pack_engine(into: Path, flows: dict[str, str]) -> Path:
    """The archive, in the directory `into`. `flows`: {name: `package.module:NAME`}, those that the
    archive does not hold are left out."""
    archive = into / FILE
    names = [f"{name} = {flow}" for name, flow in flows.items() if flow.startswith("pipelines.")]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(files_in(ENGINE)):
            add_file(packed, path.relative_to(ENGINE.parent).as_posix(), path.read_bytes())
        add_file(packed, f"{METADATA}/METADATA", HEAD.encode())
        add_file(packed, f"{METADATA}/entry_points.txt", "\n".join([f"[{GROUP}]", *names]).encode())
    return archive
