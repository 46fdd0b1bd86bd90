"""What can this node run, what after which change, and why nothing newer: a constraint search over the matrices.

`answer` holds the answers, `node` and `catalogue` what they are sought over, `for_checks` what a check may ask.
"""
