"""Training of a model from a recipe: data, augmentation, losses and the loop. Not imported by inference."""
