from hypothesis import settings

# No deadline: no test asserts a wall-clock time. Derandomised: a run tells about the code, not about luck.
settings.register_profile("forerun", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("forerun")
