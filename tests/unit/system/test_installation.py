from topics.system.installation import install_command


def test_command_fits_the_place_of_the_installation() -> None:
    assert install_command("spark") == "make setup-spark"
    assert install_command("otel") == ".venv/bin/pip install '.[otel]'"
    assert install_command("spark", in_checkout=False) == "pip install 'topics-engine[spark]'"
