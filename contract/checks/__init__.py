"""The checks: one file for each rule, or for rules that are one observation; read together they are the specification.

`facts`, `json_value`, `stored_order`, `readers`, `starts`, `leases`, `cursors`, `dead_leases`, `due` and `model` say
what a history proves and what it leaves open; the other modules each have `RULES`, the ids that they judge, and
`check(model, report)`. Nothing here knows how a broker works, and nothing here talks to one.
"""
