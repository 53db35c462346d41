/* tuner/predict.h -- rows of bench for more ranks than were measured, from rows of fewer.
 *
 * A row of exchange, attention or layer is its source's times by what a rank then does over what it did: exchanges by the
 * bytes that leave a rank, as if its link kept its rate however many peers it reaches; attention by FLOPs. The source is
 * the same call among fewer ranks, of as many as there are; of an exchange that length whose bytes are nearest, else the
 * nearest length, at most PREDICT_FACTOR times away. docs/models.md, "More ranks".
 *
 *     for (int i = 0; i < n; i++)
 *         if (predict_asks(rows, i))
 *             TRY(predict_row(rows, n, i, 8, 4, &out[k++]));   // as rows[i], of 8 ranks in groups of 4
 */
#ifndef SPTUNE_TUNER_PREDICT_H
#define SPTUNE_TUNER_PREDICT_H

#include "results/sample.h"

enum { PREDICT_FACTOR = 4 };

/* Is this the first row with its key, ranks and sp aside? The others ask for the same. */
bool predict_asks(const struct sample *rows, int i);
/* What can be predicted of row i's call is `scaled`, never `verified`; its conditions say from which row
 * ("predicted_from") and how far off it may be ("predicted_within", relative 95 % half-width). What cannot is waived,
 * with the reason. */
enum status predict_row(const struct sample *rows, int n, int i, int ranks, int sp, struct sample *out);

#endif
