"""What a verification found: one finding per check and prompt, and the verdict over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """How a check ended."""

    EXACT = "exact"
    NEAR_TIE = "near tie"
    DIFFERENT = "DIFFERENT"
    SKIPPED = "not checked"


@dataclass(frozen=True)
class Finding:
    """One check on one prompt.

    Attributes:
        prompt: Name of the prompt.
        check: Name of the check.
        status: How it ended. A near tie is no error: rounding alone decides between the tokens.
        detail: The same in words, with the numbers that decided.
        num_tokens: Output tokens (or draws) that were compared.
        num_near_ties: Places where rounding alone decided.
        numbers: What was measured, by name.
    """

    prompt: str
    check: str
    status: Status
    detail: str
    num_tokens: int = 0
    num_near_ties: int = 0
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """All findings.

    Attributes:
        findings: In the order of the checks.
        complete: False if the verification was interrupted: the findings are those made until then.
    """

    findings: tuple[Finding, ...]
    complete: bool = True

    @property
    def differences(self) -> tuple[Finding, ...]:
        """Checks that found an error."""
        return tuple(finding for finding in self.findings if finding.status is Status.DIFFERENT)

    @property
    def num_checked(self) -> int:
        """Checks that came to a result."""
        return sum(finding.status is not Status.SKIPPED for finding in self.findings)

    @property
    def num_near_ties(self) -> int:
        """Over all checks."""
        return sum(finding.num_near_ties for finding in self.findings)

    @property
    def exact(self) -> bool:
        """Whether something was checked, and nothing differs but by near ties."""
        return self.num_checked > 0 and not self.differences

    @property
    def verdict(self) -> str:
        """One line."""
        if self.differences:
            first = self.differences[0]
            text = (
                f"NOT EXACT: {len(self.differences)} of {self.num_checked} checks found a difference, the first is "
                f'"{first.check}" on {first.prompt}'
            )
        elif not self.num_checked:
            text = "NOTHING CHECKED"
        else:
            ties = self.num_near_ties
            but = f", but for {ties} near tie{'s' if ties > 1 else ''} within rounding" if ties else ""
            text = f"EXACT: {self.num_checked} checks found no difference{but}"
        return text if self.complete else f"{text} (interrupted: not all checks were run)"


def first_difference(mine: Sequence[object], other: Sequence[object]) -> int:
    """The first place where they differ, or the length of the shorter."""
    shorter = min(len(mine), len(other))
    return next((place for place in range(shorter) if mine[place] != other[place]), shorter)
