"""What a record says of the machine."""

import platform

from fngd_bench.here import _cpu


def test_a_processor_is_told_from_others_of_its_name(tmp_path):
    information = tmp_path / "cpuinfo"
    first = "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\n"
    information.write_text(first + first.replace(": 2\n", ": 3\n"))
    assert _cpu(information) == "AMD EPYC (family 26, model 2)"


def test_where_linux_tells_nothing_python_does(tmp_path):
    assert _cpu(tmp_path / "none") == (platform.processor() or platform.machine())
    (tmp_path / "arm").write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    assert _cpu(tmp_path / "arm") == (platform.processor() or platform.machine())
