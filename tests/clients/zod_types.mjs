// zod's types whose JSON Schemas an AI SDK client may send, each as the property `v` of an object.

import { z } from "zod";

export const TYPES = {
  any: z.any(),
  array_bounds: z.array(z.boolean()).min(1).max(2),
  base64: z.base64(),
  base64url: z.base64url(),
  boolean: z.boolean(),
  catchall: z.object({ a: z.boolean() }).catchall(z.boolean()),
  cidr: z.cidrv4(),
  cuid2: z.cuid2(),
  date: z.iso.date(),
  datetime: z.iso.datetime(),
  default_value: z.string().default("x"),
  described: z.boolean().describe("d").meta({ title: "t", examples: [true] }),
  duration: z.iso.duration(),
  e164: z.e164(),
  email: z.email(),
  emoji: z.emoji(),
  float32: z.float32(),
  hostname: z.hostname(),
  int: z.int(),
  int32: z.int32(),
  intersection: z.intersection(z.object({ a: z.boolean() }), z.object({ b: z.boolean() })),
  ipv4: z.ipv4(),
  ipv6: z.ipv6(),
  jwt: z.jwt(),
  lazy_recursive: z.object({ next: z.lazy(() => z.object({ n: z.boolean() }).nullable()) }),
  literals: z.literal([1, "a", null]),
  loose: z.looseObject({ a: z.boolean() }),
  multiple: z.number().multipleOf(5),
  never: z.object({ a: z.never().optional(), b: z.boolean() }),
  nullable: z.enum(["a", "b"]).nullable(),
  nullish: z.boolean().nullish(),
  number: z.number(),
  optional: z.boolean().optional(),
  partial_record: z.partialRecord(z.enum(["a", "b"]), z.boolean()),
  positive: z.number().positive(),
  record: z.record(z.string().max(3), z.boolean()),
  record_of_enum: z.record(z.enum(["a", "b"]), z.boolean()),
  regex: z.string().regex(/^[a-z]{2,4}$/),
  starts_and_ends: z.string().startsWith("ab").endsWith("c"),
  strict: z.strictObject({ a: z.boolean() }),
  template: z.templateLiteral(["v", z.literal([1, 2])]),
  time: z.iso.time(),
  tuple: z.tuple([z.boolean(), z.null()]),
  tuple_with_rest: z.tuple([z.boolean()], z.null()),
  ulid: z.ulid(),
  union: z.union([z.boolean(), z.null(), z.array(z.boolean()).max(1)]),
  union_by_key: z.discriminatedUnion("k", [z.object({ k: z.literal("a"), x: z.boolean() }),
                                           z.object({ k: z.literal("b"), y: z.boolean() })]),
  url: z.url(),
  uuid: z.uuid(),
};

// Their patterns look ahead, which may be refused by name.
export const LOOKS_AHEAD = new Set(["duration", "emoji", "hostname"]);

// They have a bound, so an answer that is cut off has run away.
export const COMPLETE = new Set([
  "array_bounds", "boolean", "date", "described", "e164", "float32", "int", "int32",
  "intersection", "ipv4", "ipv6", "lazy_recursive", "literals", "multiple", "never", "nullable",
  "nullish", "number", "optional", "positive", "regex", "strict", "template", "tuple",
  "ulid", "union", "union_by_key", "uuid"]);
