/* ds-frame: looks at streams of frames, checks, slices, merges and compares them. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "frame/tools.h"
#include "model/pack.h"

static struct tool_options tool = { .count = -1 };
static struct selection_text sel;
static struct diff_options how = { .tol = -1, .atol = -1 };
static struct opt_list maps;

static const struct opt options[] = {
	{ .name = "values", .letter = 'n', .arg = "N",
	  .help = "dump: how many values of a tensor are shown (4); head: how many frames (10)", .type = OPT_INT,
	  .dst = &tool.count, .commands = "dump head" },
	{ .name = "json", .help = "stat, diff: one JSON object", .type = OPT_FLAG, .dst = &tool.json,
	  .commands = "stat diff" },
	{ .name = "type", .letter = 't', .arg = "TYPES", .help = "filter, cut: frames of these types (request,token)",
	  .type = OPT_STR, .dst = &sel.types, .commands = "filter cut" },
	{ .name = "request", .letter = 'r', .arg = "NAME",
	  .help = "filter, cut: of this request (again: or that one); unpack: so named", .type = OPT_LIST,
	  .dst = &sel.requests, .commands = "filter cut unpack" },
	{ .name = "stream", .letter = 's', .arg = "HEX", .help = "filter, cut: of this stream id (again: or that one)",
	  .type = OPT_LIST, .dst = &sel.streams, .commands = "filter cut" },
	{ .name = "point", .letter = 'p', .arg = "POINTS",
	  .help = "filter, cut: tensors of these points (layer.*.attn_out)", .type = OPT_STR, .dst = &sel.points,
	  .commands = "filter cut" },
	{ .name = "layer", .arg = "RANGES", .help = "filter, cut: tensors of these layers (3 or 0..7,9..)",
	  .type = OPT_STR, .dst = &sel.layers, .commands = "filter cut" },
	{ .name = "step", .arg = "RANGES", .help = "filter, cut: tensors of these steps", .type = OPT_STR,
	  .dst = &sel.steps, .commands = "filter cut" },
	{ .name = "position", .arg = "RANGES", .help = "filter, cut: rows of tensors, KV blocks at these positions",
	  .type = OPT_STR, .dst = &sel.positions, .commands = "filter cut" },
	{ .name = "index", .arg = "RANGES", .help = "filter, cut: generated tokens by number", .type = OPT_STR,
	  .dst = &sel.indices, .commands = "filter cut" },
	{ .name = "frames", .arg = "RANGES", .help = "filter, cut: frames by number, as dump shows it",
	  .type = OPT_STR, .dst = &sel.frames, .commands = "filter cut" },
	{ .name = "tol", .arg = "X", .help = "diff: a row may differ by X of its length (a log-probability by X)",
	  .type = OPT_REAL, .dst = &how.tol, .rmax = 1e300, .commands = "diff" },
	{ .name = "atol", .arg = "X", .help = "diff: or each of its values by X (a log-probability by X)",
	  .type = OPT_REAL, .dst = &how.atol, .rmax = 1e300, .commands = "diff" },
	{ .name = "common", .help = "diff: what only one of the two has does not count", .type = OPT_FLAG,
	  .dst = &how.common, .commands = "diff" },
	{ .name = "map", .arg = "FROM=TO", .help = "unpack: tensors called FROM are those of point TO (again: others)",
	  .type = OPT_LIST, .dst = &maps, .commands = "unpack" },
	{ .name = "output", .letter = 'o', .arg = "FILE", .help = "write frames to FILE, renamed when complete",
	  .type = OPT_STR, .dst = &tool.output, .commands = "head filter cut merge pack unpack" },
	{ .name = "max-frame", .arg = "SIZE", .help = "largest payload accepted", .def = "256M",
	  .type = OPT_SIZE, .dst = &tool.max_frame, .env = true },
	{ .name = "force", .letter = 'f', .help = "frames from or to a terminal; overwrite FILE", .type = OPT_FLAG,
	  .dst = &tool.force },
	{ 0 },
};

static const struct opt_program program = {
	.name = "ds-frame",
	.usage = "dump|stat|head|filter|cut|pack|unpack|check|merge [FILE...]  or  ds-frame diff A B",
	.purpose = "Shows the frames of a stream as JSON lines, checks, slices, merges and compares streams.",
	.example = "ds-prefill -m DIR < requests | tee kv.frames | ds-decode -m DIR > tokens; ds-frame dump kv.frames",
	.opts = options,
};

/* ---- commands ---- */

static int run_dump(int n, char **v, struct ds_err *err) { return tool_dump(&tool, n ? v[0] : "-", err); }
static int run_check(int n, char **v, struct ds_err *err) { return tool_check(&tool, v, n, err); }
static int run_stat(int n, char **v, struct ds_err *err) { return tool_stat(&tool, n ? v[0] : "-", err); }
static int run_head(int n, char **v, struct ds_err *err) { return tool_head(&tool, n ? v[0] : "-", err); }
static int run_merge(int n, char **v, struct ds_err *err) { return tool_merge(&tool, v, n, err); }

static int run_diff(int n, char **v, struct ds_err *err)
{
	(void)n;
	return tool_diff(&tool, &how, v[0], v[1], err);
}

static int run_pack(int n, char **v, struct ds_err *err) { return tool_pack(&tool, n ? v[0] : "-", err); }

static int run_unpack(int n, char **v, struct ds_err *err)
{
	struct unpack_options u = { .maps = &maps, .request = sel.requests.n ? sel.requests.v[0] : NULL };

	(void)n;
	if (sel.requests.n > 1)
		return err_set(err, DS_USAGE, "unpack takes one --request");
	return tool_unpack(&tool, &u, v[0], err);
}

static int run_select(bool cut, const char *path, struct ds_err *err)
{
	struct selection s;
	int rc = selection_new(&s, &sel, err);

	if (!rc)
		rc = tool_select(&tool, &s, cut, path, err);
	selection_free(&s);
	return rc;
}

static int run_filter(int n, char **v, struct ds_err *err) { return run_select(false, n ? v[0] : "-", err); }
static int run_cut(int n, char **v, struct ds_err *err) { return run_select(true, n ? v[0] : "-", err); }

static const struct command {
	const char *name;
	int (*run)(int n, char **v, struct ds_err *err);
	int least, most; /* operands; most -1: any */
} commands[] = {
	{ "dump", run_dump, 0, 1 }, { "check", run_check, 0, -1 }, { "stat", run_stat, 0, 1 },
	{ "head", run_head, 0, 1 }, { "filter", run_filter, 0, 1 }, { "cut", run_cut, 0, 1 },
	{ "merge", run_merge, 1, -1 }, { "diff", run_diff, 2, 2 },
	{ "pack", run_pack, 0, 1 }, { "unpack", run_unpack, 1, 1 },
};

static int unknown(const char *name, struct ds_err *err)
{
	char all[200] = "";

	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s",
			!i ? "" : i + 1 < ARRAY_LEN(commands) ? ", " : " or ", commands[i].name);
	if (!name)
		return err_set(err, DS_USAGE, "no command given: %s; try 'ds-frame --help'", all);
	return err_set(err, DS_USAGE, "unknown command '%s': %s; try 'ds-frame --help'", name, all);
}

static int run(int argc, char **argv, struct ds_err *err)
{
	const struct command *c = commands, *end = commands + ARRAY_LEN(commands);
	int n = argc - 1;

	while (c < end && (argc < 1 || strcmp(c->name, argv[0]) != 0))
		c++;
	if (c == end)
		return unknown(argc < 1 ? NULL : argv[0], err);
	if (c->most >= 0 && n > c->most)
		return err_set(err, DS_USAGE, "unexpected operand '%s': %s takes %s", argv[c->most + 1], c->name,
			c->most == 1 ? "one file" : "two files");
	if (n < c->least)
		return err_set(err, DS_USAGE, "%s takes %s; try 'ds-frame --help'", c->name,
			c->least == 1 ? "at least one file" : "two files");
	if (opt_check_command(&program, c->name, err))
		return err->code;
	return c->run(n, argv + 1, err);
}

int main(int argc, char **argv)
{
	struct ds_err err = { 0 };
	int rc;

	signal(SIGXFSZ, SIG_IGN); /* EFBIG says it, and what was begun is removed */
	log_init(program.name, 0, 0);
	rc = opt_parse(&program, &argc, &argv, false, &err);
	if (!rc) {
		log_init(program.name, 0, opt_verbose);
		rc = run(argc, argv, &err);
	}
	if ((fflush(stdout) || ferror(stdout)) && rc != DS_IO) {
		rc = rc ? rc : DS_IO;
		err_errno(&err, DS_IO, "cannot write to '<stdout>'");
	}
	if (rc && rc != DS_SIGPIPE && err.text[0])
		log_err(&err);
	return rc;
}
