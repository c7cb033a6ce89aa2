# SPDX-License-Identifier: Apache-2.0
"""What the scripted model of the recipes answers to a user's words: a text per turn of the
assistant. The tools are those that the program of the recipe offers."""

from scripts import call

SCRIPTS = {
    "Count the lines of notes.txt into lines.txt.": [
        "I will count them.\n"
        + call("Bash", command="wc -l < notes.txt > lines.txt", description="Count lines"),
        "lines.txt has the number of lines."],
    "Sort the lines of notes.txt into sorted.txt.": [
        call("exec_command", cmd="sort notes.txt > sorted.txt"), "sorted.txt has the lines."],
    "Write notes.txt in capitals to capitals.txt.": [
        call("run_commands", commands=["tr a-z A-Z < notes.txt > capitals.txt"]),
        "capitals.txt has the lines."],
    "Write notes.txt backwards to backwards.txt.": [
        call("Bash", command="tac notes.txt > backwards.txt"), "backwards.txt has the lines."],
    "What is the weather in Paris?": [
        call("get_weather", city="Paris"), "It is 21 degrees in Paris."],
    "Report the weather in Paris.": [
        call("get_weather", city="Paris"), '{"city": "Paris", "degrees": 21}'],
    "Paris has 21 degrees. Report it.": ['{"city": "Paris", "degrees": 21}'],
}
