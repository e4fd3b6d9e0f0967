/* ds-token: text to requests, tokens to text, with the model's own tokenizer and chat template. */
#include <string.h>

#include "base/log.h"
#include "base/version.h"
#include "serve/main.h"
#include "serve/token.h"

static struct stage_options io = STAGE_DEFAULTS;
static struct token_options tok;

#define ENCODE "encode"
#define TEXTS "encode tokens render"

static const struct opt options[] = {
	{ .name = "model", .letter = 'm', .arg = "DIR", .help = "folder with tokenizer.json", .type = OPT_STR,
	  .dst = &tok.model, .env = true },
	{ .name = "chat", .help = "the text is a message of the user: render the chat template", .type = OPT_FLAG,
	  .dst = &tok.chat, .commands = TEXTS },
	{ .name = "system", .arg = "TEXT", .help = "system prompt, where the messages have none", .type = OPT_STR,
	  .dst = &tok.system, .commands = TEXTS },
	{ .name = "var", .arg = "NAME=VALUE", .help = "variable for the chat template, JSON or text", .type = OPT_LIST,
	  .dst = &tok.vars, .commands = TEXTS },
	{ .name = "lines", .help = "encode: each line is a prompt", .type = OPT_FLAG,
	  .dst = &tok.lines, .commands = ENCODE },
	{ .name = "jsonl", .help = "encode: each line is a JSON object; decode: write such lines", .type = OPT_FLAG,
	  .dst = &tok.jsonl, .commands = "encode decode" },
	{ .name = "ignore", .arg = "KEYS", .help = "pass over these keys of the JSON objects", .type = OPT_LIST,
	  .dst = &tok.ignore, .commands = "encode render" },
	{ .name = "id", .arg = "NAME", .help = "the request's id, or what ids begin with ('r')", .type = OPT_STR,
	  .dst = &tok.id, .commands = ENCODE },
	{ .name = "generation-config", .help = "sampling defaults from the model's generation_config.json",
	  .type = OPT_FLAG, .dst = &tok.generation_config, .commands = ENCODE },
	{ .name = "max-tokens", .arg = "N", .help = "most tokens of an answer (0: up to the context's end)", .def = "0",
	  .type = OPT_INT, .dst = &tok.max_tokens, .max = UINT32_MAX, .commands = ENCODE },
	{ .name = "temperature", .arg = "T", .help = "0: the likeliest token always", .def = "0", .type = OPT_REAL,
	  .dst = &tok.temperature, .rmin = 0, .rmax = 100, .commands = ENCODE },
	{ .name = "top-p", .arg = "P", .help = "choose among the likeliest that make up P", .def = "1",
	  .type = OPT_REAL, .dst = &tok.top_p, .rmin = 0, .rmax = 1, .commands = ENCODE },
	{ .name = "top-k", .arg = "K", .help = "choose among the K likeliest (0: all)", .def = "0", .type = OPT_INT,
	  .dst = &tok.top_k, .max = UINT32_MAX, .commands = ENCODE },
	{ .name = "min-p", .arg = "P", .help = "only what is P times as likely as the likeliest (0: off)", .def = "0",
	  .type = OPT_REAL, .dst = &tok.min_p, .rmin = 0, .rmax = 1, .commands = ENCODE },
	{ .name = "repetition-penalty", .arg = "R", .help = "divide logits of tokens seen, up to 10 (1: off)",
	  .def = "1", .type = OPT_REAL, .dst = &tok.repetition, .rmin = 0, .rmax = 10, .commands = ENCODE },
	{ .name = "presence-penalty", .arg = "P", .help = "subtract from logits of the answer's tokens, -2 to 2",
	  .def = "0", .type = OPT_REAL, .dst = &tok.presence, .rmin = -2, .rmax = 2, .commands = ENCODE },
	{ .name = "frequency-penalty", .arg = "P", .help = "the same, for each time that they came", .def = "0",
	  .type = OPT_REAL, .dst = &tok.frequency, .rmin = -2, .rmax = 2, .commands = ENCODE },
	{ .name = "logit-bias", .arg = "ID=BIAS", .help = "add to a token's logit, -100 to 100", .type = OPT_LIST,
	  .dst = &tok.bias, .commands = ENCODE },
	{ .name = "seed", .arg = "S", .help = "seed of the choices (-1: another one for each request)", .def = "-1",
	  .type = OPT_INT, .dst = &tok.seed, .min = -1, .max = INT64_MAX, .commands = ENCODE },
	{ .name = "n", .arg = "N", .help = "answers to each prompt, 1 to 128", .def = "1", .type = OPT_INT,
	  .dst = &tok.n, .min = 1, .max = REQUEST_MAX_N, .commands = ENCODE },
	{ .name = "stop", .arg = "TEXT", .help = "end before this text", .type = OPT_LIST, .dst = &tok.stops,
	  .commands = ENCODE },
	{ .name = "stop-id", .arg = "ID", .help = "end at this token too", .type = OPT_LIST,
	  .dst = &tok.stop_ids, .commands = ENCODE },
	{ .name = "ignore-eos", .help = "do not end at the model's end token", .type = OPT_FLAG,
	  .dst = &tok.ignore_eos, .commands = ENCODE },
	{ .name = "logprobs", .help = "ask for log-probabilities", .type = OPT_FLAG,
	  .dst = &tok.logprobs, .commands = ENCODE },
	{ .name = "top-logprobs", .arg = "N", .help = "and those of the N likeliest tokens, up to 20", .def = "0",
	  .type = OPT_INT, .dst = &tok.top_logprobs, .max = REQUEST_MAX_LOGPROBS, .commands = ENCODE },
	{ .name = "separator", .arg = "TEXT", .help = "decode: what ends each answer, with \\n, \\t, \\r, \\0",
	  .def = TOKEN_SEPARATOR, .type = OPT_STR, .dst = &tok.separator, .commands = "decode" },
	{ .name = "special", .help = "decode: write special tokens too", .type = OPT_FLAG,
	  .dst = &tok.special, .commands = "decode" },
	FILTER_OPTIONS(io),
	{ 0 },
};

static const struct opt_program program = {
	.name = "ds-token",
	.usage = "encode|decode|tokens|render -m DIR [FILE] [options] < input > output",
	.purpose = "Turns text into request frames and token frames into text.",
	.example = "echo 'What is 348 + 977?' | ds-token -m DIR encode --chat > request.frames",
	.opts = options,
};

static const struct {
	const char *name;
	int (*run)(struct tokenizing *x, const struct stage_config *stage, struct ds_err *err);
} commands[] = {
	{ "encode", token_encode }, { "decode", token_decode }, { "tokens", token_tokens }, { "render", token_render },
};

static bool given(const char *option)
{
	return opt_given(&program, option);
}

static int run(int argc, char **argv, struct ds_err *err)
{
	struct stage_config stage = { .hello = { .program = "ds-token", .version = DS_VERSION } };
	struct tokenizing x;
	size_t i = 0;
	int rc;

	if (!argc)
		return err_set(err, DS_USAGE, "no sub-command; try 'ds-token --help'");
	while (i < ARRAY_LEN(commands) && strcmp(argv[0], commands[i].name))
		i++;
	if (i == ARRAY_LEN(commands))
		return err_set(err, DS_USAGE, "unknown sub-command '%s'; try 'ds-token --help'", argv[0]);
	rc = opt_check_command(&program, commands[i].name, err);
	if (rc)
		return rc;
	rc = stage_operand(&program, &io, argc - 1, argv + 1, err);
	if (rc)
		return rc;
	stage.opt = io;
	tok.given = given;
	rc = tokenizing_open(&x, &tok, err);
	if (rc)
		return rc;
	memcpy(stage.hello.role, commands[i].name, strlen(commands[i].name) + 1);
	stage.hello.minor = DS_FRAME_MINOR;
	rc = commands[i].run(&x, &stage, err);
	tokenizing_close(&x);
	return rc;
}

int main(int argc, char **argv)
{
	struct ds_err err = { 0 };
	int rc;

	log_init(program.name, 0, 0);
	rc = opt_parse(&program, &argc, &argv, false, &err);
	if (!rc)
		rc = stage_log(&program, &io, &err);
	if (!rc)
		rc = run(argc, argv, &err);
	return stage_exit(&err, rc);
}
