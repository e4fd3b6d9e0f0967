/* ds-decode: generation.  Requests with their KV blocks and first token in; tokens out. */
#include "serve/decode.h"
#include "serve/main.h"

static struct stage_options io;
static struct work_options work;
static int64_t max_batch;

static const struct opt options[] = {
	WORK_OPTIONS(work),
	{ .name = "max-batch", .arg = "N", .help = "most requests decoded together", .def = "64", .type = OPT_INT,
	  .dst = &max_batch, .min = 1, .max = 4096 },
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
	struct stage_config stage = { .opt = io, .ops = &decode_ops };
	struct decode *d;
	struct work w;
	int rc;

	rc = work_open(&w, &work, &io, program.name, (size_t)max_batch, (size_t)max_batch, err);
	if (rc)
		return rc;
	rc = decode_new(&d, &w, (size_t)max_batch, err);
	if (!rc) {
		work_hello(&w, &stage.hello, program.name, "decode");
		stage.ctx = d;
		rc = work_finish(&w, work_run(&w, &work, &stage, err), err);
		decode_free(d);
	}
	work_close(&w);
	return rc;
}

int main(int argc, char **argv)
{
	return stage_main(&program, argc, argv, &io, run);
}
