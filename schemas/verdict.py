"""The result of validation."""

from __future__ import annotations

from pydantic import Field

from schemas.errors import IntegrityError
from schemas.run import Record

ERROR = "error"
WARNING = "warning"


class Fault(Record):
    """One broken rule in one place.

    Attributes:
        where: the file, or `file:row` with the 0-based row.
        rule: stable name of the invariant.
        detail: the value found and what is allowed.
        level: `error`, or `warning` if another tool wrote the file and the rule is only ours.
        count: rows of this file that break the rule; `where` names the first.
    """

    where: str
    rule: str
    detail: str
    level: str = ERROR
    count: int = 1


class Verdict(Record):
    """The result of validating a file, a folder or a run."""

    path: str
    kind: str
    counts: dict[str, int] = Field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    @property
    def errors(self) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.level == ERROR)

    @property
    def ok(self) -> bool:
        return not self.errors

    def raise_if_bad(self) -> None:
        """Fail if there is an error.

        Raises:
            IntegrityError: names the first error, and how many more there are.
        """
        if self.ok:
            return
        first = self.errors[0]
        more = len(self.errors) - 1
        raise IntegrityError(
            f"{first.rule}: {first.detail}" + (f"; and {more} more faults" if more else ""),
            code="invalid",
            where=first.where,
        )
