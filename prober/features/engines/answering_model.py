"""The model that the answers of a target name: one, or several in turn."""

from collections import deque

from prober.measure.engine_signals import EngineChange

SETTLING_ANSWERS = 3  # in a row, after which another model has replaced the one before
ALONE_S = 3600.0  # for so long one of several models must be the only one, to be the only one again
MAX_CHANGES = 3  # from one model to another within ALONE_S; at the next one they answer in turn
MAX_NAMES = 4  # of models that answer in turn


class AnsweringModel:
    """Finds changes of the model in successive answers. Bounded for any names: at most `MAX_CHANGES` + 2 changes within `ALONE_S`.

    Three answers in a row by another model are a change of the model. If the previous one answers again sooner, or the model changes
    too often, as behind a gateway that falls back or balances, several models answer in turn. That is one change; the next one is
    when one of them has been the only one for `ALONE_S`.

    model: the only model, or the one before several in turn; "" before the first answer
    """

    def __init__(self, model: str = "") -> None:
        self.model = model
        self._in_turn: tuple[str, ...] = ()
        self._beside = ""  # another model that has answered less than SETTLING_ANSWERS times
        self._last, self._run, self._since_s = "", 0, 0.0  # answers in a row by one model
        self._sent_s = 0.0
        self._changed_s: deque[float] = deque(maxlen=MAX_CHANGES)

    @property
    def text(self) -> str:
        """The model; several in turn are joined by `|`, with `…` for those beyond `MAX_NAMES`."""
        names = self._in_turn[:MAX_NAMES] + ("…",) * (len(self._in_turn) > MAX_NAMES)
        return "|".join(names) or self.model

    def take(self, model: str, sent_s: float) -> EngineChange | None:
        """Process an answer that names `model`, to a request sent at `sent_s`. The first model is no change.

        An answer to a request that was sent before that of the last one is ignored, so that a long answer changes nothing.
        """
        if sent_s < self._sent_s:
            return None
        self._sent_s = sent_s
        self.model = self.model or model
        if model != self._last:
            self._last, self._run, self._since_s = model, 0, sent_s
        self._run += 1
        before = self.text
        is_changed = self._is_alone_again(model) if self._in_turn else self._is_replaced(model)
        return EngineChange("model", before, self.text) if is_changed else None

    def _is_alone_again(self, model: str) -> bool:
        """True if one of several models is the only one from now on."""
        if model not in self._in_turn and len(self._in_turn) <= MAX_NAMES:
            self._in_turn += (model,)
        if self._run < SETTLING_ANSWERS or self._sent_s - self._since_s < ALONE_S:
            return False
        self.model, self._in_turn = model, ()
        return True

    def _is_replaced(self, model: str) -> bool:
        """True if another model answers from now on, or several in turn."""
        beside, self._beside = self._beside, ""
        if model == self.model:
            if beside:
                self._in_turn = (model, beside)
        elif beside not in ("", model):
            self._in_turn = (self.model, beside, model)
        elif self._run < SETTLING_ANSWERS:
            self._beside = model
            return False
        elif len(self._changed_s) == MAX_CHANGES and self._sent_s - self._changed_s[0] < ALONE_S:
            self._in_turn = (self.model, model)
        else:
            self._changed_s.append(self._sent_s)
            self.model = model
            return True
        return bool(self._in_turn)
