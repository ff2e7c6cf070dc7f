"""Parts of a model for training alone: Adagrad (`optimizer`), costs beside the loss (`regularizers`),
featurized entities, frozen parameters.
"""
