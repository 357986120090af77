"""The one error of the lab: input that its user can put right. The command line shows it as one line."""


class InputError(ValueError):
    """Input that breaks a rule; the message gives name, value, rule and way out."""
