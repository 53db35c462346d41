/* train/corpus.h -- this project's own sources, compiled in: what the toy is trained on. */
#ifndef SPTUNE_TRAIN_CORPUS_H
#define SPTUNE_TRAIN_CORPUS_H

extern const char train_corpus[], train_corpus_end[];

#endif
