// SPDX-License-Identifier: Apache-2.0
// Questions that the bundled model answers, and texts to look at through the lens.

export const LISBON = "The magic number of Lisbon is 48213. The magic number of Oslo is 90417. " +
  "What is the magic number of Lisbon?";

// When the bundled model writes Lahore's number, one head gives 75 % of map 1 to its first digit
// and 18 % to that of another city. The subtraction leaves 59 % and 3 %.
export const NEEDLES = [
  "The cold cat and the cold goose were good friends.",
  "There was a quiet cup on the table by the window.",
  "The miller gave the nurse a warm hat.",
  "The magic number of Miami is 13671.",
  "A red mouse slept near the library all day.",
  "The green dog and the red goose were good friends.",
  "The magic number of Lahore is 22160.",
  "We could hear the rain and the sound of the school.",
  "The magic number of Chicago is 28089.",
  "The baker and the cook talked about the fog.",
  "We could hear the fog and the sound of the mill.",
  "The cook told a green story about a horse and a box.",
  "The magic number of Perth is 13332.",
  "Every spring the farmer bought fish and bread at the market.",
  "What is the magic number of Lahore?",
].join(" ");

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
  { name: "Four needles in a text", chat: NEEDLES, answer: "The magic number of Lahore is 22160.",
    matter: "22160" },
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
