"""Look-up drafting by the verifier itself: no wire, no process, nothing to wait for."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from forerun.core.draft_tree import DraftTree
from forerun.core.lookup import Lookup
from forerun.core.survival import Survival
from verifier_service.stream import Source

OWN_STREAM = 0  # attached drafters are numbered from 1
SOURCE = "lookup"
LONGEST = 16  # tokens; how many of them a pass checks is decided by what its rows cost


class OwnLookup(Source):
    """One more stream of the session's tree. It drafts when asked, from the settled text as it is then."""

    def __init__(
        self, tree: DraftTree, survival: Survival, window: int, end_token_ids: AbstractSet[int] = frozenset()
    ) -> None:
        super().__init__(OWN_STREAM, SOURCE, survival)
        self.longest = min(window, LONGEST)
        self._tree = tree
        self._end_token_ids = end_token_ids
        self._lookup = Lookup()
        tree.open_stream(OWN_STREAM, window)

    def draft(self, length: int) -> None:
        """At most `length` tokens hang from the head, if the text has a place like its end and none of its own do.

        None behind an end token: the session ends with it. That looks at what is drafted, which no drafter may in
        rejection mode; here it is a function of the settled text.
        """
        tree = self._tree
        if not self.window or tree.children(None, OWN_STREAM):
            return
        self._lookup.extend(tree.token_ids[len(self._lookup) :])
        found = self._lookup.propose((), min(length, self.longest))
        ends = next(
            (i + 1 for i, token_id in enumerate(found) if token_id in self._end_token_ids), len(found)
        )
        found = found[:ends]
        if found:
            tree.graft(OWN_STREAM, tree.base, 0, tree.seen_id(OWN_STREAM) + 1, found)
