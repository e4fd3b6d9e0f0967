#include "serve/unit_options.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "ep/ranks.h"

/* A peer in a step is waited for by the whole unit: it is given less time than a client. */
#define RANK_TIMEOUT_NS ((int64_t)5000000000)

/* What says nothing without --unit. */
static const char *const of_units[] = { "rank", "world", "local-rank", "redundant", "transport", "unit-timeout",
	"micro-batches", "dispatch-tokens", "link-delay", "link-rate", "loads", "loads-to", "load-interval" };

static int no_unit(const struct unit_options *o, const struct opt_program *p, struct ds_err *err)
{
	struct rank r;

	for (size_t i = 0; i < ARRAY_LEN(of_units); i++)
		if (opt_given(p, of_units[i]))
			return err_set(err, DS_USAGE, "--%s says nothing without --unit ADDR", of_units[i]);
	/* What the environment says of ranks is of interest to nobody, unless it was meant. */
	if (!rank_find(&o->rank, rank_getenv, &r, err) && r.world > 1)
		log_msg(LOG_INFO, "%s: rank %zu of %zu, but no --unit: this process works alone", r.from, r.rank,
			r.world);
	return 0;
}

/* Two processes that were both "rank 0 of 1" would be no unit, and nobody would notice. */
static int check_said(const struct unit_options *o, struct ds_err *err)
{
	if (*o->me.from)
		return 0;
	return err_set(err, DS_USAGE, "--unit: which rank of how many this is is not said; use --rank N and --world "
		"N, or a launcher that sets them");
}

static int check(const struct unit_options *o, const struct opt_program *p, const struct stage_options *io,
	struct ds_err *err)
{
	if (o->transport && strcmp(o->transport, "shm") != 0 && strcmp(o->transport, "tcp") != 0)
		return err_set(err, DS_USAGE, "--transport: '%s' is neither 'shm' nor 'tcp'", o->transport);
	if (o->loads && o->loads_to)
		return err_set(err, DS_USAGE, "--loads and --loads-to exclude each other");
	if (o->loads && (o->alone || (io->listen && !io->output)))
		return err_set(err, DS_USAGE, "--loads: this rank has no output; use --loads-to FILE");
	if (opt_given(p, "load-interval") && !o->loads && !o->loads_to)
		return err_set(err, DS_USAGE, "--load-interval says nothing without --loads or --loads-to");
	if (o->alone && io->listen)
		return err_set(err, DS_USAGE, "--input none: there is nothing to --listen for");
	return 0;
}

/* The given name becomes this rank's own; it stays for as long as the program runs. */
static int personal(const struct rank *r, const struct unit_name *u, struct ds_err *err)
{
	char *own;
	int rc;

	if (!*u->name)
		return 0;
	rc = rank_name(r, u->option, *u->name, &own, err);
	if (!rc)
		*u->name = own;
	return rc;
}

static int personal_names(const struct rank *r, struct stage_options *io, const struct unit_name *more, size_t n,
	struct ds_err *err)
{
	const struct unit_name names[] = { { "--input", &io->input }, { "--output", &io->output },
		{ "--listen", &io->listen }, { "--connect", &io->connect } };
	int rc = 0;

	for (size_t i = 0; i < ARRAY_LEN(names) && !rc; i++)
		rc = personal(r, &names[i], err);
	for (size_t i = 0; i < n && !rc; i++)
		rc = personal(r, &more[i], err);
	return rc;
}

int unit_options_settle(struct unit_options *o, const struct opt_program *p, struct stage_options *io,
	const struct unit_name *more, size_t n, struct ds_err *err)
{
	const char *unit = rank_getenv("DS_UNIT"), *peer = rank_getenv("DS_PEER_TIMEOUT");
	int rc;

	if (!o->rank.unit && (!unit || !*unit))
		return no_unit(o, p, err);
	o->alone = io->input && strcmp(io->input, "none") == 0;
	o->peer_timeout_ns = opt_given(p, "peer-timeout") || (peer && *peer) ? io->peer_ns : RANK_TIMEOUT_NS;
	if ((rc = rank_find(&o->rank, rank_getenv, &o->me, err)) || (rc = check_said(o, err)) ||
	    (rc = check(o, p, io, err)))
		return rc;
	if (o->alone)
		io->output = io->connect = NULL; /* given because all ranks are given the same */
	rc = personal_names(&o->me, io, more, n, err);
	if (rc)
		return rc;
	log_msg(LOG_INFO, "rank %zu of %zu by %s, local rank %zu", o->me.rank, o->me.world, o->me.from, o->me.local);
	return 0;
}
