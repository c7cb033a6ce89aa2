# SPDX-License-Identifier: Apache-2.0
"""The scripted model's answers: a name, and one text per turn of the assistant."""

import json


def call(name, **arguments):
    """A tool call in the format `hermes`."""
    return (f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>")


SCRIPTS = {
    "hello": ["Hello there! Grüße, 世界 🙂.", "And hello again."],
    "weather": [call("get_weather", city="Paris"), "It is 21 degrees in Paris."],
    "two": ["Both at once.\n" + call("get_weather", city="Oslo") + "\n"
            + call("get_weather", city="Lima"), "Oslo 3, Lima 18."],
    "chain": [call("get_weather", city="Bonn"), call("get_time", zone="CET"), "Mild at noon."],
    "empty": [call("list_cities"), "None."],
    "think": ["<think>\nFirst I think.\n</think>\n\nThe answer is 4.", "Still 4."],
    "plan": ["<think>\nI need the weather.\n</think>\n\n" + call("get_weather", city="Rome"),
             "<think>\nNow I know.\n</think>\n\nRome has 30 degrees."],
    "long": ["word " * 3 + "and so on until the answer is cut off by its limit"],
    "claude": ["I will look.\n" + call("Bash", command="echo by-claude > made.txt; cat made.txt",
                                      description="Make a file"),
               call("Read", file_path="made.txt"), "The file says by-claude."],
    "search": [call("ToolSearch", query="select:WebFetch"), "The tool is loaded."],
    "report": [call("get_weather", city="Kyiv"), '{"city": "Kyiv", "degrees": 9}'],
    "part": ['{"yes": true}'],
    "mend": ['```json\n{"city": "Rome"}\n```', '```json\n{"city": "Lima"}\n```'],
    "form": [call("StructuredOutput", text="yes"), "Done."],
    "codex": ["<think>\nA command will do.\n</think>\n\n"
              + call("exec_command", cmd="echo by-codex > made.txt; cat made.txt"),
              "The file says by-codex."],
}
