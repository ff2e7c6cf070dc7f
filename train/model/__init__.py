"""Parts of a model for training alone: Adagrad (`optimizer`), learning rates, regularizers, relation
prediction, featurized entities, frozen parameters.
"""
