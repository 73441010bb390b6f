"""Maximum-likelihood training and calibration of neural markets."""
