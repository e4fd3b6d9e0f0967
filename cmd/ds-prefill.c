/* ds-prefill: prompt processing.  Requests in; requests with their KV blocks and first token out. */
#include "serve/main.h"
#include "serve/prefill.h"

static struct stage_options io = STAGE_DEFAULTS;
static struct work_options work = WORK_DEFAULTS;
static int64_t chunk, batch_tokens, max_batch;

static const struct opt options[] = {
	WORK_OPTIONS(work),
	{ .name = "chunk", .arg = "N", .help = "most tokens of one request in a step", .def = "512", .type = OPT_INT,
	  .dst = &chunk, .min = 1, .max = 1 << 20 },
	{ .name = "batch-tokens", .arg = "N", .help = "most tokens in a step, raised to --chunk", .def = "512",
	  .type = OPT_INT, .dst = &batch_tokens, .min = 1, .max = 1 << 20 },
	{ .name = "max-batch", .arg = "N", .help = "most requests in a step", .def = "64", .type = OPT_INT,
	  .dst = &max_batch, .min = 1, .max = 4096 },
	{ .name = "mtp", .help = "hand over what ds-decode --mtp begins with", .type = OPT_FLAG, .dst = &work.mtp },
	UNIT_OPTIONS(work.unit),
	STAGE_OPTIONS(io),
	{ 0 },
};

static const struct opt_program program = {
	.name = "ds-prefill",
	.usage = "-m DIR [FILE | -l ADDR] [-o FILE | -c ADDR] [options] < requests > kv",
	.purpose = "Computes prompts: reads request frames, writes each with its KV blocks and first token.",
	.example = "ds-token -m DIR encode --chat < question | ds-prefill -m DIR > kv.frames",
	.opts = options,
};

static int run(struct ds_err *err)
{
	struct stage_config stage = { .ops = &prefill_ops };
	struct prefill *p;
	struct work w;
	int rc;

	work.max_rows = (size_t)(chunk > batch_tokens ? chunk : batch_tokens);
	work.max_segs = (size_t)max_batch;
	work.overlap = OVERLAP_PREFILL;
	rc = work_settle(&work, &io, &program, err);
	if (!rc)
		rc = work_open(&w, &work, &io, program.name, "prefill", err);
	if (rc)
		return rc;
	rc = prefill_new(&p, &w, (size_t)chunk, err);
	if (!rc) {
		work_hello(&w, &stage.hello, program.name, "prefill");
		stage.opt = io;
		stage.ctx = p;
		rc = work_finish(&w, work_run(&w, &work, &stage, err), err);
		prefill_free(p);
	}
	work_close(&w);
	return rc;
}

int main(int argc, char **argv)
{
	return stage_main(&program, argc, argv, &io, run);
}
