"""What a run loses by its number formats, and where: watch, survey, shadow and explain.

``tracer``: how operations, modules, backward passes and optimizers are seen. ``report``: what all reports can do.
``watch``: the counts of a training run; ``shadow``: exact values beside a run; ``survey``: formats layer by layer;
``explain``: why two ways of computing differ. The other modules hold what these stand on.
"""
