"""A training step as docs/formats/pbg_v1.md defines it, edge by edge, in float64, with autograd.

A reference for comparison: plain loops, one number at a time, nothing shared with train/.
"""

import torch


def operate(operator, values, x):
    d = len(x)
    match operator:
        case "none":
            return x
        case "diagonal":
            return values[0] * x
        case "translation":
            return values[0] + x
        case "linear":
            return values[0] @ x
        case "affine":
            return values[0] @ x + values[1]
        case "complex_diagonal":
            product = torch.complex(x[: d // 2], x[d // 2 :]) * torch.complex(values[0], values[1])
            return torch.cat([product.real, product.imag])
        case "rotation":
            turned = torch.complex(x[: d // 2], x[d // 2 :]) * torch.exp(1j * values[0])
            return torch.cat([turned.real, turned.imag])
    raise AssertionError(operator)


def compare(comparator, bias, a, b):
    if bias:
        return compare(comparator, False, a[1:], b[1:]) + a[0] + b[0]
    match comparator:
        case "dot":
            return torch.dot(a, b)
        case "cos":
            return torch.dot(a, b) / (torch.linalg.norm(a) * torch.linalg.norm(b))
        case "l2":
            return -torch.linalg.norm(a - b)
        case "squared_l2":
            return -torch.sum((a - b) ** 2)
    raise AssertionError(comparator)


def loss_of(loss_fn, margin, pos, negs, num_columns):
    """`negs` without the masked ones; `num_columns` with them."""
    match loss_fn:
        case "ranking":
            return sum((torch.relu(neg - pos + margin) for neg in negs), start=0 * pos)
        case "logistic":
            negative = sum((torch.log1p(torch.exp(neg)) for neg in negs), start=0 * pos)
            return torch.log1p(torch.exp(-pos)) + negative / max(num_columns, 1)
        case "softmax":
            return torch.logsumexp(torch.stack([pos, *negs]), 0) - pos
    raise AssertionError(loss_fn)


def modulus(operator, x):
    return torch.hypot(*x.chunk(2)) if operator in ("complex_diagonal", "rotation") else x.abs()


def n3(operator, x):
    return (modulus(operator, x) ** 3).sum()


def n3_of_operator(operator, values):
    if operator == "complex_diagonal":
        return n3(operator, torch.cat(values))
    if operator == "rotation":  # angles: every modulus is 1
        return torch.zeros((), dtype=torch.float64)
    return sum(((value.abs() ** 3).sum() for value in values), start=torch.zeros((), dtype=torch.float64))


class Oracle:
    """The loss of one chunk of edges whose drawn negatives are given."""

    def __init__(self, config, embeddings, values, global_embs):
        """embeddings: {type: [N, D]}; values: f(side, relation) -> the operator's parameters."""
        self.config = config
        self.two_sided = config.dynamic_relations or config.train.reciprocal_relations
        self.embeddings = embeddings
        self.values = values
        self.global_embs = global_embs

    def entity(self, entity_type, index):
        x = self.embeddings[entity_type][index]
        return x + self.global_embs[entity_type] if self.config.global_emb else x

    def score(self, corrupted, edge):
        """The score of an edge when the side `corrupted` is in question."""
        lhs_index, rel, rhs_index = edge
        c = self.config
        entry = c.relations[0 if c.dynamic_relations else rel]
        lhs, rhs = self.entity(entry.lhs, lhs_index), self.entity(entry.rhs, rhs_index)
        if self.two_sided and corrupted == "rhs":
            lhs = operate(entry.operator, self.values("lhs", rel), lhs)
        else:
            rhs = operate(entry.operator, self.values("rhs", rel), rhs)
        return compare(c.comparator, c.bias, lhs, rhs)

    def chunk_loss(self, edges, drawn, in_batch=True, weights=None):
        """drawn: {side: indices shared by the chunk}; the own entity is never a negative."""
        c = self.config
        total = torch.zeros((), dtype=torch.float64)
        for number, (lhs, rel, rhs) in enumerate(edges):
            entry = c.relations[0 if c.dynamic_relations else rel]
            weight = entry.weight * (1 if weights is None else weights[number])
            for side in ("lhs", "rhs"):
                own = lhs if side == "lhs" else rhs
                others = [edge[0 if side == "lhs" else 2] for edge in edges] if in_batch else []
                columns = others + list(drawn[side])
                negs = [
                    self.score(side, (x, rel, rhs) if side == "lhs" else (lhs, rel, x))
                    for x in columns
                    if x != own
                ]
                pos = self.score(side, (lhs, rel, rhs))
                total = total + weight * loss_of(c.loss_fn, c.margin, pos, negs, len(columns))
        return total

    def regularisation(self, edges):
        c = self.config
        total = torch.zeros((), dtype=torch.float64)
        for lhs, rel, rhs in edges:
            entry = c.relations[0 if c.dynamic_relations else rel]
            for side in ("lhs", "rhs") if self.two_sided else ("rhs",):
                total = total + n3(entry.operator, self.embeddings[entry.lhs][lhs])
                total = total + n3(entry.operator, self.embeddings[entry.rhs][rhs])
                total = total + n3_of_operator(entry.operator, self.values(side, rel))
        return c.regularization_coef * total


def adagrad(rows, sums, gradient, lr):
    """New rows and sums: a sum for each element, or for each row [N]."""
    squared = gradient**2
    if is_by_row := sums.shape != rows.shape:
        squared = squared.mean(1)
    sums = sums + squared
    scale = lr / (sums.sqrt() + 1e-10)
    return rows - (scale[:, None] if is_by_row else scale) * gradient, sums
