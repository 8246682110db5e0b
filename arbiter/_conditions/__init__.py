"""Conditions: yes-or-no questions in CEL that get only the fields that they name.

    condition = Condition("input.amount > 1000 && !state.user.is_admin", variables={"input", "state"})
    condition.evaluate({"input": {"amount": 2000}, "state": {"user": {"is_admin": False}}})  # True

The fields are found once, from the text: a `Scan` follows each chain of members (`state.user.is_admin`) and
builds a tree of needs, one node per field. So a question about one number costs the same next to a state of 1
MB. If a chain cannot be followed further (`state.roles[input.key]`, `size(state.messages)`), every value that
it could reach is passed; if that would be a whole state, the expression is an error. Values beyond the needed
ones never change an answer, and a missing value is an error, never an answer. See
docs/kinds/condition-checker.md.
"""

from arbiter._conditions.condition import Condition, condition_of, instructions_in
from arbiter._conditions.totals import Totals
from arbiter.errors import ConditionError

__all__ = ["Condition", "ConditionError", "Totals", "condition_of", "instructions_in"]
