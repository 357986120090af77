"""The routes to a Gram matrix, a file each; `planner` says which one is the quickest for a shape.

A route is a function of a weight's uses, the power of two that gradients are divided by, the canonical shape, the plan
and scratch memory. It returns K and, where what it has made on the way helps, a way to the weighted gradient.
"""
