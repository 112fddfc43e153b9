"""Read small texts that a configuration gives either in place or as a file."""

from __future__ import annotations

from schemas.errors import ConfigError
from tasks.storage.reading import read_text


def template_source(given: str | None, where: str) -> str:
    """Return a chat template's source: `given` itself if it looks like a template, else the content of that file.

    Args:
        given: a template or a path; `None` or empty for no custom template.
        where: the configuration field, for errors.

    Raises:
        ConfigError: `missing_template`: the file cannot be read.
    """
    if not given or "{" in given or "\n" in given:
        return given or ""
    try:
        return read_text(given)
    except (OSError, ValueError) as error:  # not UTF-8, or a NUL in the path
        raise ConfigError(
            f"cannot read the template file {given!r}: {error}; give a file, or the template itself",
            code="missing_template",
            where=where,
        ) from error
