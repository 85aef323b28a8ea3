"""What the target said and the drafter has yet to see."""

from __future__ import annotations

import numpy as np

from treedecode.drafters.base import VerifiedRows
from treedecode.tree import DraftTree

# Plain steps whose rows are kept; of a longer run the first ones are dropped.
MAX_PLAIN = 256


class RowQueue:
    """Verified rows in the order of the text.

    Steps without drafting may be many before the drafter is asked again. The rows of such a run are handed over as
    one chain of which every node is accepted, as the rows of a prompt are: the same rows, for one call.
    """

    def __init__(self) -> None:
        self._rows: list[VerifiedRows] = []
        self._plain: list[VerifiedRows] = []

    def add(self, rows: VerifiedRows) -> None:
        """Rows of a step, or of the prompt, that the drafter had a part in."""
        self._join()
        self._rows.append(rows)

    def add_plain(self, rows: VerifiedRows) -> None:
        """The row of a step for which nothing was drafted: a root alone."""
        self._plain.append(rows)
        if len(self._plain) >= 2 * MAX_PLAIN:
            del self._plain[:MAX_PLAIN]

    def take(self) -> tuple[VerifiedRows, ...]:
        """All of it; nothing is left."""
        self._join()
        rows, self._rows = tuple(self._rows), []
        return rows

    def _join(self) -> None:
        run, self._plain = self._plain[-MAX_PLAIN:], []
        if run:
            nodes = range(len(run))
            tree = DraftTree.trusted([node - 1 for node in nodes], [rows.tree.token_tuple[0] for rows in run])
            self._rows.append(
                VerifiedRows(
                    tree,
                    run[0].root_index,
                    tuple(nodes),
                    np.concatenate([rows.top_ids for rows in run]),
                    np.concatenate([rows.top_logits for rows in run]),
                )
            )
