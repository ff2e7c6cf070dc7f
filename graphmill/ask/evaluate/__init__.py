"""The stage evaluate: filtered MRR and Hits@k by relation and degree, baselines, samples and intervals,
tasks over partitions and queries, probabilities of answers (`calibrate`).
"""
