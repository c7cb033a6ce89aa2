// SPDX-License-Identifier: Apache-2.0
// Questions that the bundled model answers, and texts to look at through the lens.

export const LISBON = "The magic number of Lisbon is 48213. The magic number of Oslo is 90417. " +
  "What is the magic number of Lisbon?";

const FILLER = [
  "The quiet farmer walked to the river in the morning.",
  "A small cat slept near the station all day.",
  "The magic number of Oslo is 90417.",
  "There was a green lamp on the table by the window.",
  "The quiet cat and the happy fox were good friends.",
  "The magic number of Lisbon is 48213.",
  "The children saw seven birds above the harbor.",
  "The train to Prague leaves in the evening.",
  "It is good to eat warm bread after a long walk in the snow.",
  "The magic number of Cairo is 33568.",
  "The teacher told a happy story about a goose and a clock.",
  "They waited at the bridge until the storm was over.",
  "The magic number of Seoul is 71926.",
  "A letter from the sailor lay in the blue box.",
  "The doctor has lived near the forest for nine years.",
];

export const NEEDLES = `${FILLER.join(" ")} What is the magic number of Lisbon?`;

export const QUESTIONS = [
  ["Find a number", LISBON],
  ["Four needles in a text", NEEDLES],
  ["What is a Diff Transformer?", "What is a Diff Transformer?"],
  ["Who are you?", "Who are you?"],
  ["Capital of Portugal", "What is the capital of Portugal?"],
  ["Tell me a story", "Tell me a story about a fox."],
];

// Texts for the lens: a question, its answer, and the part of the question that matters for it.
export const TEXTS = [
  { name: "Four needles in a text", chat: NEEDLES, answer: "The magic number of Lisbon is 48213.",
    matter: "48213" },
  { name: "Two numbers", chat: LISBON, answer: "The magic number of Lisbon is 48213.",
    matter: "48213" },
];

// Shares of attention by the depth of the needle, as the paper prints them.
export const PAPER = {
  depths: [0, 25, 50, 75, 100],
  rows: [
    ["to the answer", "Transformer", [0.03, 0.03, 0.03, 0.07, 0.09]],
    ["to the answer", "Diff", [0.27, 0.3, 0.31, 0.32, 0.4]],
    ["to noise", "Transformer", [0.51, 0.54, 0.52, 0.49, 0.49]],
    ["to noise", "Diff", [0.01, 0.02, 0.02, 0.02, 0.01]],
  ],
};
