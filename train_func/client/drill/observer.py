"""Follows a job while it is drilled, as far as it is asked to, and finds the step at which it trains again."""

import time
from collections.abc import Callable, Iterator

from train_func.client.display.trace import Point, Trace
from train_func.client.watch import News

SILENT_SECONDS = 60.0  # after which an attempt that tells no step counts as training


class Observer(Trace):
    """The trace of a job, which looks at it when it is asked to."""

    def __init__(self, news: Iterator[News], note: Callable[[str], None]) -> None:
        """Looks at nothing yet.

        Args:
            news: of the job, until it has ended.
            note: prints what hinders the job, or happened to a worker.
        """
        super().__init__()
        self._news, self._note = news, note

    @property
    def attempt(self) -> int:
        """The number of the newest attempt; 0 before the first one."""
        return self.group.attempt if self.group else 0

    @property
    def is_training(self) -> bool:
        """Returns whether the newest group has done a step, or has been there for long without telling one."""
        group = self.group
        if group is None:
            return False
        has_stepped = any(step.attempt == group.attempt for step in self.steps)
        return has_stepped or time.time() - group.time > SILENT_SECONDS

    def until(self, condition: Callable[[], object]) -> bool:
        """Looks until the condition holds; returns False where the job is over before that."""
        while not condition():
            if self.is_over:
                return bool(condition())
            is_first, news = not self.state, next(self._news)
            self.take(news)
            for diagnosis in () if is_first else news.diagnoses:  # what had happened before the drill is no news
                self._note(str(diagnosis))
            if news.failure and news.is_last:
                self._note(str(news.failure))
        return True

    def first_new(self, attempt: int, begun: float, done: int = -1) -> Point | None:
        """The first step after ``begun``, of this or a later attempt, that had not been done before; None if none was.

        For a function that tells no steps it is the step 0 of the next group.

        Args:
            attempt: the first one that may do it.
            begun: Unix seconds.
            done: the last step that was done before, where more is known of that than steps tell.
        """
        steps, groups = self.steps, self.groups
        before = [step.step for step in steps if step.attempt < attempt or step.time < begun]
        after = [step for step in steps if step.attempt >= attempt and step.time >= begun]
        if not steps:
            after = [Point(group.time, group.attempt, 0) for group in groups if group.attempt >= attempt]
        new = [step for step in after if step.step > max([*before, done])]
        return min(new, key=lambda step: step.time, default=None)
