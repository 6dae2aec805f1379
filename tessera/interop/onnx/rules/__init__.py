"""Rules of ONNX node types, a file for each family."""

from tessera.interop.onnx.rules import attention as attention
from tessera.interop.onnx.rules import cast as cast
from tessera.interop.onnx.rules import contraction as contraction
from tessera.interop.onnx.rules import contrib as contrib
from tessera.interop.onnx.rules import control as control
from tessera.interop.onnx.rules import elementwise as elementwise
from tessera.interop.onnx.rules import fused as fused
from tessera.interop.onnx.rules import image as image
from tessera.interop.onnx.rules import integers as integers
from tessera.interop.onnx.rules import loss as loss
from tessera.interop.onnx.rules import ml as ml
from tessera.interop.onnx.rules import norm as norm
from tessera.interop.onnx.rules import pool as pool
from tessera.interop.onnx.rules import quantise as quantise
from tessera.interop.onnx.rules import random as random
from tessera.interop.onnx.rules import reduce as reduce
from tessera.interop.onnx.rules import rnn as rnn
from tessera.interop.onnx.rules import sequence as sequence
from tessera.interop.onnx.rules import shape as shape
from tessera.interop.onnx.rules import signal as signal
from tessera.interop.onnx.rules import svm as svm
from tessera.interop.onnx.rules import text as text
from tessera.interop.onnx.rules import training as training
from tessera.interop.onnx.rules import trees as trees
