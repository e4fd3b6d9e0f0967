/* ds-decode: generation.  Requests with their KV blocks and first token in; tokens out. */
#include "serve/decode.h"
#include "serve/main.h"

static struct stage_options io = STAGE_DEFAULTS;
static struct work_options work = WORK_DEFAULTS;
static int64_t max_batch, chunk, batch_tokens, drafts;
static bool always;

static const struct opt options[] = {
	WORK_OPTIONS(work),
	{ .name = "max-batch", .arg = "N", .help = "most answers generated together", .def = "64", .type = OPT_INT,
	  .dst = &max_batch, .min = 1, .max = 4096 },
	{ .name = "batch-tokens", .arg = "N", .help = "most tokens in a step, raised to --max-batch and one --chunk",
	  .def = "512", .type = OPT_INT, .dst = &batch_tokens, .min = 1, .max = 1 << 20 },
	{ .name = "chunk", .arg = "N", .help = "most tokens of one prompt in a step, for requests without KV",
	  .def = "128", .type = OPT_INT, .dst = &chunk, .min = 1, .max = 1 << 20 },
	{ .name = "mtp", .arg = "N", .help = "speculate: draft N tokens a step with the model's MTP layer", .def = "0",
	  .type = OPT_INT, .dst = &drafts, .max = MTP_MOST },
	{ .name = "mtp-always", .help = "speculate even where it does not pay", .type = OPT_FLAG, .dst = &always },
	{ .name = "store-generated", .help = "put blocks of generated tokens into the store of --kv, too",
	  .type = OPT_FLAG, .dst = &work.kv.generated },
	UNIT_OPTIONS(work.unit),
	STAGE_OPTIONS(io),
	{ 0 },
};

static const struct opt_program program = {
	.name = "ds-decode",
	.usage = "-m DIR [FILE | -l ADDR] [-o FILE | -c ADDR] [options] < kv > tokens",
	.purpose = "Generates: reads requests with their KV blocks and first token, writes a frame for each token.",
	.example = "ds-decode -m DIR < kv.frames | ds-token -m DIR decode",
	.opts = options,
};

static int run(struct ds_err *err)
{
	struct decode_options o = { .max_batch = (size_t)max_batch, .chunk = (size_t)chunk, .drafts = (size_t)drafts,
		.always = always };
	struct stage_config stage = { .ops = &decode_ops };
	struct decode *d;
	struct work w;
	int rc;

	if (always && !drafts)
		return err_set(err, DS_USAGE, "--mtp-always says nothing without --mtp N");
	work.mtp = work.drafts = drafts > 0;
	work.max_segs = o.max_batch;
	work.max_rows = o.max_batch + o.chunk;
	if (o.drafts && o.chunk < MTP_PENDING)
		work.max_rows = o.max_batch + MTP_PENDING;
	if ((size_t)batch_tokens > work.max_rows)
		work.max_rows = (size_t)batch_tokens;
	work.max_logits = o.max_batch * (1 + o.drafts);
	work.overlap = OVERLAP_DECODE;
	rc = work_settle(&work, &io, &program, err);
	if (!rc)
		rc = work_open(&w, &work, &io, program.name, "decode", err);
	if (rc)
		return rc;
	rc = decode_new(&d, &w, &o, err);
	if (!rc) {
		work_hello(&w, &stage.hello, program.name, "decode");
		stage.opt = io;
		stage.ctx = d;
		rc = work_finish(&w, work_run(&w, &work, &stage, err), err);
		decode_report(d);
		decode_free(d);
	}
	work_close(&w);
	return rc;
}

int main(int argc, char **argv)
{
	return stage_main(&program, argc, argv, &io, run);
}
