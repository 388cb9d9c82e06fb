"""From features to encoder frames: the causal front end and the two streaming encoders."""
