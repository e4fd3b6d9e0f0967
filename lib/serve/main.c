#include "serve/main.h"

#include <string.h>

#include "base/log.h"

int stage_log(const struct opt_program *p, const struct stage_options *io, struct ds_err *err)
{
	bool json = io->log_format && strcmp(io->log_format, "json") == 0;

	if (io->log_format && !json && strcmp(io->log_format, "text") != 0)
		return err_set(err, DS_USAGE, "--log-format: '%s' is neither 'text' nor 'json'", io->log_format);
	log_init(p->name, json, opt_verbose);
	return 0;
}

int stage_exit(const struct ds_err *err, int rc)
{
	/* A reader that went away is the reader's business: head(1) must not make noise. */
	if (rc && rc != DS_SIGPIPE && err->text[0])
		log_err(err);
	return rc;
}

int stage_operand(const struct opt_program *p, struct stage_options *io, int argc, char **argv, struct ds_err *err)
{
	if (argc > 1 || (argc && io->listen))
		return err_set(err, DS_USAGE, "unexpected operand '%s'; try '%s --help'", argv[argc - 1], p->name);
	if (argc)
		io->input = argv[0];
	return 0;
}

int stage_main(const struct opt_program *p, int argc, char **argv, struct stage_options *io,
	int (*run)(struct ds_err *err))
{
	struct ds_err err = { 0 };
	int rc;

	log_init(p->name, 0, 0);
	rc = opt_parse(p, &argc, &argv, false, &err);
	if (!rc)
		rc = stage_log(p, io, &err);
	if (!rc)
		rc = stage_operand(p, io, argc, argv, &err);
	if (!rc)
		rc = run(&err);
	return stage_exit(&err, rc);
}
