"""Read small texts that a configuration gives either in place or as a file."""

from __future__ import annotations

import stat

from schemas.errors import ConfigError
from tasks.storage.reading import read_text, status

# The longest templates of well-known models have 20 KB.
_LARGEST = 2**18


def template_source(given: str | None, where: str) -> str:
    """Return a chat template's source: `given` itself if it looks like a template, else the content of that file.

    Args:
        given: a template or a path; `None` or empty for no custom template.
        where: the configuration field, for errors.

    Raises:
        ConfigError: `missing_template`: the file cannot be read; `bad_template`: it is too large for a template.
    """
    if not given or "{" in given or "\n" in given:
        return given or ""
    try:
        found = status(given)
        if found.st_size > _LARGEST or not stat.S_ISREG(found.st_mode):
            raise ConfigError(
                f"the template file {given!r} has {found.st_size:,} bytes; a template is a regular file of at most "
                f"{_LARGEST:,} bytes; is this a data file?",
                code="bad_template",
                where=where,
            )
        return read_text(given)
    except (OSError, ValueError) as error:  # not UTF-8, or a NUL in the path
        raise ConfigError(
            f"cannot read the template file {given!r}: {error}; give a file, or the template itself",
            code="missing_template",
            where=where,
        ) from error
