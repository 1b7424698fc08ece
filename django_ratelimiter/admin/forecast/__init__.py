"""“What would this do?”: the forecast above the form of a rule."""
