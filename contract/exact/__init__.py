"""An exact second opinion on short histories: is there a legal execution of the contract that explains one?

    from contract.exact import Finding, explain
    answer = explain(history)
    if answer.finding is Finding.REJECTED: print(answer.order, answer.why)

It covers one queue, its groups and their acks, up to about twenty calls, and shares no code with the checks that judge
histories of any length, nor with the reference broker.
"""

from contract.exact.search import Answer, Finding, explain

__all__ = ["Answer", "Finding", "explain"]
