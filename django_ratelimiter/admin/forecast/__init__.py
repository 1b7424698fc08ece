"""“What would this do?”: the forecast below the form of a rule."""
