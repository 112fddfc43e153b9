"""Begin every flow run the same way: claim the folder, identify the inputs, name the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from schemas.run import Receipt, RunManifest
from tasks.inputs.survey import Survey
from tasks.report.reuse import Reuse
from tasks.run.contract import Domain, missing_stages
from tasks.run.identity import FingerprintJob, mapped_survey, read_inputs
from tasks.run.layout import run_folder
from tasks.run.publish import complete_run
from tasks.run.receipts import Verify
from tasks.runtime.mapping import each_with_receipts, run_once
from tasks.runtime.names import name_run
from tasks.runtime.step import step
from tasks.runtime.stopping import stopping_soon
from tasks.storage.links import refuse_links

log = logging.getLogger("gristmill.runtime")

_fingerprint = step("fingerprint", read_inputs)


def tell(
    domain: Domain,
    identify: Callable[[Any, Survey], Any],
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
        reuse = Reuse()
        each = each_with_receipts(root, verify, force, reuse)
        read: list[FingerprintJob] = []

        def read_all(jobs: Sequence[FingerprintJob]) -> list[Receipt]:
            read.extend(jobs)
            return each(_fingerprint, jobs)

        identity = identify(config, mapped_survey(domain, root, read_all))
        # It would be refused again when the run is published, after all the work.
        refuse_links(run_folder(root, identity.run_hash))
        name_run(config, identity.run_hash)
        for warning in identity.warnings():
            log.warning("%s", warning)
        if read and not force:
            # Only now is it known whether there is something to do; who asks before starting reads but a little.
            manifest = complete_run(root, identity.run_hash, verify, domain.published)
            if manifest is not None:
                return manifest.model_dump(mode="json")
        with missing_stages(root.absolute()):
            return mill(config, identity, each, run_once, reuse).model_dump(mode="json")
