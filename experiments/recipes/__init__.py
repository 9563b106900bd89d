"""Recipes: named, frozen rules for learning rate, batch, warm-up and schedule. One file each."""
