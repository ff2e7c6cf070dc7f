"""Questions to a trained run, whoever asks: a version of the checkpoint and its raw ids (`run`), its
model in torch and its relations in numpy, entities by number and by id, known edges of rows (`edges`),
best candidates (`scan`); the stage drift: how far vectors have moved since the run before.
"""
