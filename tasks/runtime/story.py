"""Begin every flow run the same way: claim the folder, identify the inputs, name the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.run import RunManifest
from tasks.report.reuse import Reuse
from tasks.run.contract import Domain
from tasks.run.layout import run_folder
from tasks.run.receipts import Verify
from tasks.runtime.mapping import each_with_receipts, run_once
from tasks.runtime.names import name_run
from tasks.runtime.stopping import stopping_soon
from tasks.storage.links import refuse_links


def tell(
    domain: Domain,
    identify: Callable[[Any], Any],
    mill: Callable[..., RunManifest],
    config: Any,
    verify: Verify,
    force: bool,
) -> dict[str, Any]:
    """Run a flow's story on Prefect; return the manifest it published, as JSON values.

    Args:
        domain, identify: the domain of the run, and the function that returns its identity.
        mill: the story, `(config, identity, each, once, reuse)`.
        config: with `output_dir`.
        verify: how closely cached results are checked before they are used again.
        force: run every step again, even if it is cached.

    Raises:
        GristmillError: what the story raised; the folder is another flow's or a link, or an input cannot be read.
    """
    with stopping_soon():
        root = Path(config.output_dir)
        domain.claim(root)
        identity = identify(config)
        # It would be refused again when the run is published, after all the work.
        refuse_links(run_folder(root, identity.run_hash))
        name_run(config, identity.run_hash)
        reuse = Reuse()
        each = each_with_receipts(root, verify, force, reuse)
        return mill(config, identity, each, run_once, reuse).model_dump(mode="json")
