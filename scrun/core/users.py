"""Names of users, from a name service that may hang (nsswitch.conf(5))."""

import pwd


def user_name(uid: int, otherwise: str = "{}") -> str:
    """Look up a user's name; without one it is `otherwise`, where `{}` stands for the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return otherwise.format(uid)
