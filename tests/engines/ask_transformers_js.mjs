// Vectors by transformers.js in Node, from a folder on disk.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, basename, join } from "node:path";

const request = JSON.parse(readFileSync(0, "utf8"));
const require = createRequire(join(process.cwd(), "anything.js"));
const { env, pipeline } = await import(require.resolve("@huggingface/transformers"));
env.allowRemoteModels = false;
env.localModelPath = dirname(request.folder);
const extract = await pipeline("feature-extraction", basename(request.folder), { dtype: "fp32" });
const embed = async (texts) => (await extract(texts, { pooling: "mean" })).tolist();
const alone = [];
for (const text of request.texts) alone.push((await embed([text]))[0]);
console.log(JSON.stringify({ alone, together: await embed(request.texts) }));
